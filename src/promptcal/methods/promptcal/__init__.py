"""PromptCAL: warm-up with prompts, then contrastive affinity learning."""

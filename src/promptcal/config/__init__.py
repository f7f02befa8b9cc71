"""Settings: their schema, presets, and how the layers are merged."""

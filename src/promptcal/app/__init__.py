"""The local labelling app: `promptcal serve RUN`. Its server needs `pip install 'promptcal[app]'`."""

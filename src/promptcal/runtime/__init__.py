"""Device, processes, files, locks, seeds and signals: nothing here knows the method."""

"""The scripts that train the demo model and its SAEs, and write their data into `src/steerserve/demo/data`."""

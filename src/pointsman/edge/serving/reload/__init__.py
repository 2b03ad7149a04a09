"""Another configuration for a front end that runs."""

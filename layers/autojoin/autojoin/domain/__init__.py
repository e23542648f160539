"""Pure rules: no boto3, no clock, no environment."""

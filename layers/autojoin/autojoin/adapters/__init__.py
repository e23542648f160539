"""The only modules that import boto3. Each is imported when its port is first asked for."""

"""Autojoin: EC2 instances of Auto Scaling groups join an Arktos cluster, and leave it, by themselves."""

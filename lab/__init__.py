"""The lab: a whole AWS region with an Arktos cluster on this machine, for the demo, the scenarios and the tests."""

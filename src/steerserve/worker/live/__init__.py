"""What reads activations of the attached SAEs in the rows of all requests: monitoring and sensing."""

"""Numerical methods that samplers share."""

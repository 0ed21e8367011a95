"""Requests and their answers, in this process and over HTTP."""

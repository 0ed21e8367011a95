"""Single messages: tracking, acknowledging, replaying, dead letters."""

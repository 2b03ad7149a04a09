"""What a person starts."""

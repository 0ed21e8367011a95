"""`trident repair`: finds what is damaged, decides what can be proved, mends it."""

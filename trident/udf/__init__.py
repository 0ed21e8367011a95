"""Users' functions: their signatures, expressions, types, and how they reach the workers."""

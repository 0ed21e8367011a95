"""The pages that are made from code, and the runner of the programs that pages show."""

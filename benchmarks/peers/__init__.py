"""Each peer as its documentation has it: its app, its no-op job, and a Producer. Run in processes of their own."""

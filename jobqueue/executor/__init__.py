"""The process that runs tasks. The first lines of each file, and the layout in docs/design.md, say what is where."""

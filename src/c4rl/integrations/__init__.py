"""C4 in other libraries, each imported only when used."""

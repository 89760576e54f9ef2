package main

// legacy calls: this architecture never had any.
var legacy []struct {
	name string
	make func(path, own string) error
}

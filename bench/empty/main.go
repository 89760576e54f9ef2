// Empty does nothing: how long it takes is what any Go program pays to start.
package main

func main() {}

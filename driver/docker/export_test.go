package docker

import "time"

// EndPatience sets how long the engine has to end a container, and returns what
// puts that back.
func EndPatience(d time.Duration) (back func()) {
	was := endPatience
	endPatience = d
	return func() { endPatience = was }
}

package host

import "github.com/sbxrun/sbxrun/driver"

// Describe says that the driver enforces nothing. Unlike every other driver it
// refuses no policy for that: to choose it by its name is to agree.
func (*Driver) Describe() driver.Description {
	c := driver.Claims{
		"process":     {Support: driver.Yes},
		"terminal":    {Support: driver.Yes},
		"egress.host": {Support: driver.Yes}, "egress.loopback": {Support: driver.Partly, Note: "and everything else"},
		"limits.time":   {Support: driver.Partly, Note: "a command that outwits the sweep of its processes survives"},
		"limits.output": {Support: driver.Yes},
		"result.signal": {Support: driver.Yes},
		"result.killed": {Support: driver.Partly, Note: "the command is, not what it left behind"},
	}
	for i := range driver.Features {
		if name := driver.Features[i].Name; c[name] == (driver.Claim{}) {
			c[name] = driver.Claim{Note: "nothing is isolated"}
		}
	}
	return driver.Description{Summary: "the bare host: isolates nothing, and is never chosen unless named", Claims: c}
}

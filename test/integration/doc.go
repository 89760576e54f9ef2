// Package integration tests the sbxrun binary from outside: it runs it, as root
// and as an ordinary user, against a battery of attacks, and looks at what came
// of them inside and on the host.
//
// The battery is a registry of entries (battery_test.go), one for each attack
// of the security design, named by its identifier: an attack is a command of
// the program attack, an expectation says what each of its acts must get in the
// sandbox, and a control runs the same attack without the protection, so that a
// test cannot pass because its attack was broken. Acts that are named
// "neighbour: …" are the permitted ones next to what is forbidden; they must
// succeed in both. The program stage sets up what controls run in: namespaces
// of their own, thrown away afterwards, because an attack that works is not to
// work on the machine that tests it.
//
//	go test ./test/integration -run 'TestBattery/F01'
//
// The package knows nothing of sbxrun's insides. What it cannot show here (a
// host without legacy TIOCSTI, a piped core handler, a set clock) is named, with
// the reason, in the log of the test.
package integration

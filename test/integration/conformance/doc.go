// Package conformance holds no code: its tests run the same policies through
// every driver and compare what happens with what should (DRV-4).
//
// A case is a policy, a command and an expectation; it says which features of a
// policy it is about. A driver whose claims have one of them as "no" must refuse
// the policy by name. One that says "yes" must meet the expectation. Where it says
// "partly" a difference is what it declared; testdata/declared lists every case in
// which a driver does not do what was expected, so that a driver cannot get out of
// the suite by declaring more.
//
// A driver whose program is not installed fails: tools/deps installs them all.
package conformance

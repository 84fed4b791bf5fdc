// Package param describes the parameters of a profile or an algorithm: one Key for each. A table of
// keys is all that a configuration file, its checks and its reference know of them.
//
//	owner: Keys() []Key ─┬─▶ decoder: Name, Form, Use
//	                     ├─▶ Check, then Set: stores a value in the owner's struct
//	                     └─▶ reference: Name, Value, Use, About, Simulation
//
// A Key belongs to the struct in which it stores values, and has the same owner.
package param

package conform

// unchecked are the clauses for devices that a client alone cannot check, with the reason.
var unchecked = map[string]string{
	"DEV-947":  "nothing tells a client which path its packets take",
	"DEV-1005": "the window's package refuses to store such an index; the device's own tests do it",
	"DEV-1007": "how much ringing is too much is the device's own measure, and nothing is lost by it",
}

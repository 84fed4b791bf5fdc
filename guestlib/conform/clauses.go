package conform

// unchecked are the clauses for devices that a client alone cannot check, with the reason.
var unchecked = map[string]string{
	"DEV-947":  "nothing tells a client which path its packets take",
	"DEV-1005": "the window's package refuses to store such an index; the device's own tests do it",
	"DEV-1007": "how much ringing is too much is the device's own measure, and nothing is lost by it",
}

// watched are the clauses for drivers that a device can see broken (DEV-105), those with strict
// alone where the host set nic.strict.
var watched = []string{
	"DRV-102", "DRV-103", "DRV-201", "DRV-202", "DRV-205", "DRV-206", "DRV-301", "DRV-304", "DRV-306", "DRV-401", "DRV-402", "DRV-403", "DRV-501", "DRV-502",
	"DRV-601", "DRV-602", "DRV-603", "DRV-608", "DRV-611", "DRV-701", "DRV-704", "DRV-705", "DRV-708", "DRV-709", "DRV-801", "DRV-902", "DRV-911", "DRV-924",
	"DRV-1003", "DRV-1004", "DRV-1007", "DRV-1010",
}

package conform

// unchecked are the clauses for devices that a client alone cannot check, with the reason.
var unchecked = map[string]string{
	"DEV-947":  "nothing tells a client which path its packets take",
	"DEV-1005": "the window's package refuses to store such an index; the device's own tests do it",
	"DEV-1007": "how much ringing is too much is the device's own measure, and nothing is lost by it",
}

// watched are the clauses for drivers that a device can see broken (DEV-105), those with strict alone where the host set nic.strict.
var watched = []string{
	"DRV-102", "DRV-103", "DRV-201", "DRV-202", "DRV-205", "DRV-206", "DRV-301", "DRV-304", "DRV-306", "DRV-401", "DRV-402", "DRV-403", "DRV-501", "DRV-502",
	"DRV-601", "DRV-602", "DRV-603", "DRV-608", "DRV-611", "DRV-701", "DRV-704", "DRV-705", "DRV-708", "DRV-709", "DRV-801", "DRV-902", "DRV-911", "DRV-924",
	"DRV-1003", "DRV-1004", "DRV-1007", "DRV-1010",
}

// Unseen are the clauses for drivers that a device cannot see broken, with the reason.
var Unseen = map[string]string{
	"DRV-101":  "any bytes are some number",
	"DRV-204":  "how replies are matched is the driver's own affair",
	"DRV-208":  "memory given away early is no different from memory kept",
	"DRV-210":  "what a driver does after its stream has ended no device sees",
	"DRV-307":  "waiting leaves no trace",
	"DRV-504":  "how completions are matched is the driver's own affair",
	"DRV-604":  "a doorbell on its way looks like one not sent",
	"DRV-703":  "reads leave no trace",
	"DRV-710":  "what a driver does with an event leaves no trace",
	"DRV-720":  "a doorbell sent meanwhile looks like one sent before",
	"DRV-803":  "a SHOULD",
	"DRV-922":  "work posted to the old area is not looked at any more",
	"DRV-923":  "a SHOULD",
	"DRV-950":  "which of the two ends is wrong cannot be told; the connection is not made (DEV-950)",
	"DRV-1001": "reads leave no trace",
	"DRV-1002": "the ring is zeroed when the stream begins; what was in it before cannot be told from an earlier user's",
	"DRV-1009": "reads leave no trace",
}

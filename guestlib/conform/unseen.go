package conform

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

package conform

// unchecked lists the clauses for devices that a client alone cannot check, with the reasons.
var unchecked = map[string]string{
	"DEV-947":  "nothing tells a client which path its packets take",
	"DEV-1012": "the kit attaches by the control block where the URL is a PCI device's: then each check is of it too",
	"DEV-1013": "the kit attaches by the control block where the URL is a PCI device's: then each check is of it too",
	"DEV-1014": "the kit attaches by the control block where the URL is a PCI device's: then each check is of it too",
	"DEV-1015": "the control block's package reads Full and rings as it must; cm.behind has messages that wait for room, where the URL is a PCI device's",
	"DEV-1016": "the control block's package refuses to write such a thing; the device's own tests do it",
	"DEV-1017": "the kit has its admin queues in memory; the device's own tests have them in a window",
	"DEV-1105": "it takes drivers of two functions at once, and of a slot one process has both; the device's own tests have them",
	"DEV-1005": "the window's package refuses to store such an index; the device's own tests do it",
	"DEV-1007": "how much ringing is too much is the device's own measure, and nothing is lost by it",
}

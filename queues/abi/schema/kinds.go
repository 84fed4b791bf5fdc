package schema

import "strings"

// ObjectKind is a kind of verbs' objects, of which a function may have a number.
type ObjectKind struct {
	Name    string // singular, as verbs have it; in small letters it is the key of the configuration
	Doc     string // plural, in words
	Note    string // on what counts, or ""
	Initial uint32 // that a function may have when nobody says
	Most    uint32 // that the configuration allows
}

// objectKinds is the one table of kinds. A new one is a line here, at the end, and in the engine a
// file of its own and its place in rdma/verbs' table.
var objectKinds = []ObjectKind{
	{"QP", "queue pairs", "that of type GSI does not count", 256, 1<<16 - 2},
	{"CQ", "completion queues", "", 512, 1 << 16},
	{"MR", "memory regions", "", 4096, 1 << 20},
	{"PD", "protection domains", "", 256, 1 << 16},
	{"AH", "address handles", "", 4096, 1 << 20},
	{"SRQ", "shared receive queues", "", 256, 1<<16 - 1},
	{"MW", "memory windows", "", 4096, 1 << 20},
	{"XRCD", "XRC domains", "", 64, 1<<16 - 1},
	{"MCG", "attachments to multicast groups", "of one queue pair to one group each", 256, 1 << 16},
}

// Key is the kind's name in the configuration.
func (k *ObjectKind) Key() string { return strings.ToLower(k.Name) }

// objectCounts has a count for each kind.
func objectCounts() Struct {
	s := Struct{Name: "ObjectCounts", Size: (4*len(objectKinds) + 7) &^ 7, Doc: "ObjectCounts counts the objects of a function by kind. An SRQ has at most MaxQPEntries entries of MaxSGE SGEs (QueryDeviceResult)."}
	for i, k := range objectKinds {
		doc := k.Doc + "."
		if k.Note != "" {
			doc = k.Doc + "; " + k.Note + "."
		}
		s.Fields = append(s.Fields, Field{Name: k.Name + "s", Offset: 4 * i, Kind: U32, Doc: doc})
	}
	return s
}

package abi

// Object is a kind of verbs objects.
type Object uint8

// ObjectInfo describes a kind.
type ObjectInfo struct {
	Name    string // singular, as in verbs
	Key     string // name in the configuration
	Doc     string // plural, as a phrase
	Initial uint32 // default limit of a function
	Most    uint32 // maximum that the configuration allows
}

// Info returns the description of the kind.
func (k Object) Info() *ObjectInfo { return &objects[k] }

// String returns the kind's name.
func (k Object) String() string { return objects[k].Name }

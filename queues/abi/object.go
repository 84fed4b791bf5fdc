package abi

// Object is a kind of verbs' objects.
type Object uint8

// ObjectInfo describes a kind.
type ObjectInfo struct {
	Name    string // singular, as verbs have it
	Key     string // in the configuration
	Doc     string // plural, in words
	Initial uint32 // that a function may have when nobody says
	Most    uint32 // that the configuration allows
}

// Info describes the kind.
func (k Object) Info() *ObjectInfo { return &objects[k] }

// String returns the kind's name.
func (k Object) String() string { return objects[k].Name }

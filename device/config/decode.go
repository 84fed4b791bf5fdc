package config

import (
	"cmp"
	"encoding"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v4"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/internal/param"
)

// decoder maps YAML nodes onto the Config types. It replaces the library's own struct decoding in
// order to report every problem with its path, not only the first ones with a Go type name.
type decoder struct {
	*report
	use string // the "use" tag of the field that is being read
}

var (
	durationType   = reflect.TypeFor[time.Duration]()
	addrType       = reflect.TypeFor[netip.Addr]()
	prefixType     = reflect.TypeFor[netip.Prefix]()
	addrPortType   = reflect.TypeFor[netip.AddrPort]()
	falconType     = reflect.TypeFor[Falcon]()
	congestionType = reflect.TypeFor[Congestion]()
	textType       = reflect.TypeFor[encoding.TextUnmarshaler]()
	nodeType       = reflect.TypeFor[yaml.Node]()
)

func (d *decoder) value(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind == yaml.AliasNode {
		d.addAt(n.Line, path, "aliases are not supported", "write the value out")
		return
	}
	if v.Kind() == reflect.Pointer {
		if isNull(n) {
			return
		}
		p := reflect.New(v.Type().Elem())
		d.value(n, path, p.Elem())
		v.Set(p)
		return
	}
	if isNull(n) && n.Kind == yaml.ScalarNode {
		return // "key:" with nothing behind it means the default
	}
	switch {
	case v.Type() == nodeType: // somebody else reads it
		v.Set(reflect.ValueOf(*n))
	case isScalar(v.Type()):
		d.scalar(n, path, v)
	case v.Type() == falconType:
		d.falcon(n, path, v.Addr().Interface().(*Falcon))
	case v.Type() == congestionType:
		d.congestion(n, path, v.Addr().Interface().(*Congestion))
	case v.Kind() == reflect.Struct:
		d.mapping(n, path, v)
	case v.Kind() == reflect.Slice && nameOf(v.Type().Elem()) >= 0:
		d.entries(n, path, v)
	case v.Kind() == reflect.Slice:
		d.sequence(n, path, v)
	default:
		panic("config: no decoding for " + v.Type().String())
	}
}

// nameOf returns the index of the field, tagged as entry:"name", that has the name of an entry: a
// list of such structs is written as a group with a key for each. It is -1 for other types.
func nameOf(t reflect.Type) int {
	if t.Kind() == reflect.Struct {
		for i := range t.NumField() {
			if t.Field(i).Tag.Get("entry") == "name" {
				return i
			}
		}
	}
	return -1
}

// entries decodes a group of named entries, in the file's order.
func (d *decoder) entries(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.addAt(n.Line, path, describe(n)+" where a group of names is expected", "write each as NAME: {…}, or NAME: {} where it needs no keys")
		return
	}
	elem := v.Type().Elem()
	d.keys(n, path, nil, func(key string, val *yaml.Node, p string) bool {
		e := reflect.New(elem).Elem()
		e.Field(nameOf(elem)).SetString(key)
		d.value(val, p, e)
		v.Set(reflect.Append(v, e))
		return true
	})
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// isNamed reports whether t is a standard library type that has its own syntax and error message
// here.
func isNamed(t reflect.Type) bool {
	return t == durationType || t == addrType || t == prefixType || t == addrPortType
}

func isScalar(t reflect.Type) bool {
	if isNamed(t) || reflect.PointerTo(t).Implements(textType) {
		return true
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Slice, reflect.Map, reflect.Array:
		return false
	}
	return true
}

func (d *decoder) mapping(n *yaml.Node, path string, v reflect.Value) {
	d.keys(n, path, keysOf(v.Type()), func(key string, val *yaml.Node, p string) bool {
		f, use, ok := fieldByKey(v, key)
		if ok {
			d.use = use
			d.value(val, p, f)
		}
		return ok
	})
}

// keys calls set for each key of a group; set returns false for an unknown key.
func (d *decoder) keys(n *yaml.Node, path string, known []string, set func(key string, val *yaml.Node, path string) bool) {
	if n.Kind != yaml.MappingNode {
		d.addAt(n.Line, path, describe(n)+" where a group of keys is expected", "write one of "+strings.Join(known, ", ")+" under it")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			d.addAt(key.Line, path, "a key must be a word", "")
			continue
		}
		p := join(path, key.Value)
		if first, dup := seen[key.Value]; dup {
			d.addAt(key.Line, p, fmt.Sprintf("given twice, first on line %d", first), "keep one of them")
			continue
		}
		seen[key.Value] = key.Line
		d.lines[p] = key.Line
		if !set(key.Value, val, p) {
			delete(d.lines, p)
			d.addAt(key.Line, p, "unknown key", suggest(key.Value, known))
		}
	}
}

// falcon decodes a profile's keys, and those that override its values.
func (d *decoder) falcon(n *yaml.Node, path string, f *Falcon) {
	f.Values = map[string]any{}
	profile := falcon.Software() // all profiles have the same keys
	keys := profile.Keys()
	nested, in := groups(keys)
	others := map[string]func(val *yaml.Node, p string){
		"profile": func(val *yaml.Node, p string) { d.value(val, p, reflect.ValueOf(&f.Profile).Elem()) },
		"cc":      func(val *yaml.Node, p string) { d.value(val, p, reflect.ValueOf(&f.CC).Elem()) },
	}
	for _, group := range nested {
		others[group] = func(val *yaml.Node, p string) {
			if !isNull(val) {
				d.parameters(val, p, group+".", in[group], f.Values, nil)
			}
		}
	}
	d.parameters(n, path, "", keys, f.Values, others)
}

// congestion decodes the keys of the algorithm that the group names.
func (d *decoder) congestion(n *yaml.Node, path string, c *Congestion) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "algorithm" {
			d.value(n.Content[i+1], join(path, "algorithm"), reflect.ValueOf(&c.Algorithm).Elem())
		}
	}
	c.Values = map[string]any{}
	d.parameters(n, path, "", c.parameters(cc.Hardware).Keys(), c.Values, map[string]func(*yaml.Node, string){"algorithm": func(*yaml.Node, string) {}})
}

// parameters decodes the keys of a table into values. The names of the keys begin with prefix, which
// the file does not repeat; others are the keys that are not in the table.
func (d *decoder) parameters(n *yaml.Node, path, prefix string, keys []param.Key, values map[string]any, others map[string]func(val *yaml.Node, p string)) {
	known, words := map[string]param.Key{}, []string{}
	for _, k := range keys {
		if name := strings.TrimPrefix(k.Name, prefix); !strings.Contains(name, ".") {
			known[name] = k
			words = append(words, name)
		}
	}
	for name := range others {
		words = append(words, name)
	}
	slices.Sort(words)
	d.keys(n, path, words, func(key string, val *yaml.Node, p string) bool {
		if other := others[key]; other != nil {
			other(val, p)
			return true
		}
		k, ok := known[key]
		if !ok {
			return false
		}
		d.use = k.Use
		v := reflect.New(reflect.TypeOf(k.Form)).Elem()
		if before := len(d.problems); !isNull(val) {
			if d.value(val, p, v); len(d.problems) == before {
				values[k.Name] = v.Interface()
			}
		}
		return true
	})
}

func (d *decoder) sequence(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind == yaml.ScalarNode && v.Type().Elem().Kind() == reflect.Int { // a single number is a list of one
		n = &yaml.Node{Kind: yaml.SequenceNode, Line: n.Line, Content: []*yaml.Node{n}}
	}
	if n.Kind != yaml.SequenceNode {
		d.addAt(n.Line, path, describe(n)+" where a list is expected", `begin each entry with "- "`)
		return
	}
	out := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, e := range n.Content {
		p := path + "[" + strconv.Itoa(i) + "]"
		d.lines[p] = e.Line
		d.value(e, p, out.Index(i))
	}
	v.Set(out)
}

func (d *decoder) scalar(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.addAt(n.Line, path, describe(n)+" where a single value is expected", "")
		return
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok && !isNamed(v.Type()) {
		if err := u.UnmarshalText([]byte(n.Value)); err != nil {
			d.addAt(n.Line, path, err.Error(), "")
		}
		return
	}
	parse := d.plain
	if isNamed(v.Type()) {
		parse = named
	}
	if what, remedy := parse(n.Value, path, v); what != "" {
		d.addAt(n.Line, path, fmt.Sprintf("%q %s", n.Value, what), remedy)
	} else if v.IsZero() {
		d.zeros[path] = true
	}
}

// named sets a duration or an address, or returns what is wrong with s and the remedy.
func named(s, path string, v reflect.Value) (wrong, remedy string) {
	switch v.Type() {
	case durationType:
		t, err := time.ParseDuration(s)
		if err != nil {
			return "is not a duration", "write it with its unit, as 10ms or 1.5s"
		}
		v.SetInt(int64(t))
	case addrType:
		a, err := netip.ParseAddr(s)
		if err != nil || a.Is4In6() || a.Zone() != "" {
			return "is not an IPv4 or IPv6 address", "write it as " + exampleAddr(path)
		}
		v.Set(reflect.ValueOf(a))
	case prefixType:
		a, err := netip.ParsePrefix(s)
		if err != nil || a.Addr().Is4In6() {
			return "is not an IPv4 or IPv6 address with a prefix length", "write it as 10.0.0.1/24 or fd00::1/64"
		}
		v.Set(reflect.ValueOf(a))
	case addrPortType:
		a, err := netip.ParseAddrPort(s)
		if err != nil || a.Port() == 0 {
			return notAddrPort(s)
		}
		v.Set(reflect.ValueOf(a))
	}
	return "", ""
}

// notAddrPort returns which part of an invalid address with port is wrong, and the remedy.
func notAddrPort(s string) (wrong, remedy string) {
	host, port, err := net.SplitHostPort(s)
	switch _, bad := netip.ParseAddr(host); {
	case err != nil && strings.Count(s, ":") > 1:
		return "is not an address with a port", "write an IPv6 address in brackets, as [fd00::1]:7471"
	case err != nil:
		return "has no port", "write address and port, as 127.0.0.1:7471"
	case bad != nil:
		return "does not begin with an IP address", "write the address itself, as 127.0.0.1:" + cmp.Or(port, "7471")
	}
	return fmt.Sprintf("has the port %q", port), "use a port from 1 to 65535"
}

// plain sets a string, a boolean or a number, or returns what is wrong with s and the remedy.
func (d *decoder) plain(s, _ string, v reflect.Value) (wrong, remedy string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		if s != "true" && s != "false" {
			return "is neither true nor false", "write true or false"
		}
		v.SetBool(s == "true")
	case reflect.Int, reflect.Int32, reflect.Int64:
		i, err := strconv.ParseInt(s, 0, v.Type().Bits())
		if err != nil {
			return d.notWhole(s, uint64(1)<<(v.Type().Bits()-1)-1)
		}
		v.SetInt(i)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		u, err := strconv.ParseUint(s, 0, v.Type().Bits())
		if err != nil {
			return d.notWhole(s, uint64(1)<<(v.Type().Bits()-1)*2-1)
		}
		v.SetUint(u)
	case reflect.Float64:
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || f != f || f > 1e18 || f < -1e18 {
			return "is not a number", "write it as 0.5"
		}
		v.SetFloat(f)
	default:
		panic("config: no decoding for " + v.Type().String())
	}
	return "", ""
}

// notWhole returns what is wrong with a number that a field cannot hold, and the remedy.
func (d *decoder) notWhole(s string, most uint64) (wrong, remedy string) {
	wrong, remedy = "is not a whole number", "write a whole number"
	if _, ok := new(big.Int).SetString(s, 0); ok {
		wrong, remedy = "is out of range", fmt.Sprintf("use at most %d", most)
		if strings.HasPrefix(s, "-") {
			remedy = "use a number that is not negative"
		}
	}
	if d.use != "" {
		remedy = "use " + d.use
	}
	return wrong, remedy
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a group of keys"
	case yaml.SequenceNode:
		return "a list"
	}
	if text := []rune(n.Value); len(text) > 40 { // probably not a configuration file
		return strconv.Quote(string(text[:40])) + "…"
	}
	return strconv.Quote(n.Value)
}

func exampleAddr(path string) string {
	if strings.HasPrefix(path, "functions") || strings.HasPrefix(path, "peers") && strings.Contains(path, "functions") {
		return "192.168.100.11"
	}
	return "10.0.0.1"
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// fieldByKey returns the field of a key, also from embedded structs, and its "use" tag, which
// describes the permitted values.
func fieldByKey(v reflect.Value, key string) (field reflect.Value, use string, ok bool) {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			if in, use, ok := fieldByKey(v.Field(i), key); ok {
				return in, use, true
			}
		} else if key != "" && f.Tag.Get("yaml") == key {
			return v.Field(i), f.Tag.Get("use"), true
		}
	}
	return reflect.Value{}, "", false
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			keys = append(keys, keysOf(f.Type)...)
		} else if k := f.Tag.Get("yaml"); k != "" {
			keys = append(keys, k)
		}
	}
	return keys
}

// Nearest returns the known word that is closest, with at most two typing errors; empty: none.
func Nearest(word string, known []string) (best string) {
	bestDist := 3
	for _, k := range known {
		if d := editDistance(word, k); d < bestDist {
			best, bestDist = k, d
		}
	}
	return best
}

// suggest names the nearest known key if it is at most two typing errors away, else all known keys.
func suggest(key string, known []string) string {
	if best := Nearest(key, known); best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	sorted := append([]string(nil), known...)
	sort.Strings(sorted)
	return "known here: " + strings.Join(sorted, ", ")
}

func editDistance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diag
			if a[i-1] != b[j-1] {
				cost++
			}
			diag = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

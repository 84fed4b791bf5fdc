package settings

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Setting is one setting of a function.
type Setting struct {
	Key    string
	Also   []string // other names, as in `ip link set … vf`
	Value  string   // form of the value, for people
	Help   string   // meaning; "": the name says it
	Values []string // all values, if they are few
	Resets bool     // a new value makes it another function: it is reset

	// Set parses a value. Text writes the value that a function has, such that Set gives the same
	// value whatever the function had before.
	Set  func(to *config.Function, text string) error
	Text func(of *config.Function) string
}

var table = slices.Concat(identity, quotas(), shares)

// identity holds the settings of what a function is and may do.
var identity = []Setting{
	{
		Key: "mac", Value: "ADDRESS", Help: "of the function and of its direct port", Resets: true,
		Set:  func(to *config.Function, text string) error { return to.MAC.UnmarshalText([]byte(text)) },
		Text: func(of *config.Function) string { return of.MAC.String() },
	},
	{
		Key: "tenant", Value: "NUMBER", Help: "its virtual network", Resets: true,
		Set:  func(to *config.Function, text string) error { return number(&to.Tenant, text) },
		Text: func(of *config.Function) string { return strconv.FormatUint(uint64(of.Tenant), 10) },
	},
	{
		Key: "address", Also: []string{"addr"}, Value: "IP|none", Help: "in the tenant's network", Resets: true,
		Set: setAddress, Text: addressText,
	},
	{Key: "guest", Value: "cid:N|unix:NAME|none", Help: "who may drive it", Set: setGuest, Text: guestText},
	{Key: "dma_window", Value: "ADDRESS+SIZE|all", Help: "memory that it may reach", Resets: true, Set: setWindow, Text: windowText},
	{
		Key: "max_tx_rate", Also: []string{"rate"}, Value: "MBIT/S", Help: "the most it sends; 0: no limit",
		Set:  func(to *config.Function, text string) error { return number(&to.MaxTxRate, text) },
		Text: func(of *config.Function) string { return strconv.FormatUint(of.MaxTxRate, 10) },
	},
	{Key: "weight", Value: "1..255", Help: "its share of the NIC, relative to other busy functions", Set: setWeight, Text: weightText},
	{
		Key: "trust", Value: "on|off", Help: "a VF may use any MAC, a PF may give its VFs more than it has", Values: onOffValues,
		Set:  func(to *config.Function, text string) error { return onOff(&to.Trust, text) },
		Text: func(of *config.Function) string { return onOffText(of.Trust) },
	},
	{
		Key: "spoofchk", Also: []string{"spoofcheck"}, Value: "on|off", Help: "its port sends from its own MAC and addresses only", Values: onOffValues,
		Set: setSpoofCheck, Text: func(of *config.Function) string { return onOffText(*of.SpoofCheck) },
	},
	{
		Key: "state", Also: []string{"link"}, Value: "auto|enable|disable", Help: "its link", Values: []string{"auto", "enable", "disable"},
		Set:  func(to *config.Function, text string) error { return to.Link.UnmarshalText([]byte(text)) },
		Text: func(of *config.Function) string { return of.Link.String() },
	},
}

// quotas returns the settings of how many objects a function may have.
func quotas() (list []Setting) {
	for k := range abi.NumObjects {
		list = append(list, quotaOf("max_"+k.Info().Key, k.Info().Doc, func(l *config.Limits) *uint32 { return l.Quotas.Of(k) }))
	}
	return list
}

// shares holds the settings of the function's shares of the NIC, and of its port.
var shares = []Setting{
	quotaOf("qp_entries", "entries of a queue pair's rings", func(l *config.Limits) *uint32 { return &l.QPEntries }),
	quotaOf("cq_entries", "entries of a completion queue", func(l *config.Limits) *uint32 { return &l.CQEntries }),
	{
		Key: "credits", Value: "N|COUNTER=N,...", Help: "the most it may hold",
		Set:  func(to *config.Function, text string) error { return setCounts(&to.Credits, text, 1) },
		Text: func(of *config.Function) string { return countText(&of.Credits) },
	},
	{
		Key: "guarantee", Value: "N|COUNTER=N,...", Help: "credits that are set aside for it",
		Set:  func(to *config.Function, text string) error { return setCounts(&to.Guarantee, text, 0) },
		Text: func(of *config.Function) string { return countText(&of.Guarantee) },
	},
	{
		Key: "port", Value: "name=DEV,mode=direct|bridged,...|none", Help: "bridge, netns, mtu, mac, persist, assign, address too",
		Set: setPort, Text: func(of *config.Function) string { return portText(of.Port) },
	},
}

// elsewhere holds the settings of `ip link set … vf` that this NIC does in another way.
var elsewhere = map[string]string{
	"vlan":        "VFs are kept apart by tenant, not by VLAN; set tenant",
	"min_tx_rate": "what is sure for a function is counted in credits; set guarantee, as guarantee req-pkt-tx=64",
	"query_rss":   "there is no RSS to query",
	"node_guid":   "the GUID is made of the MAC; set mac",
	"port_guid":   "the GUID is made of the MAC; set mac",
}

// quotaOf returns a setting of how many of something a function may have.
func quotaOf(key, what string, field func(*config.Limits) *uint32) Setting {
	return Setting{
		Key: key, Value: "N", Help: "the most " + what,
		Set:  func(to *config.Function, text string) error { return quota(field(&to.Limits), text) },
		Text: func(of *config.Function) string { return strconv.FormatUint(uint64(*field(&of.Limits)), 10) },
	}
}

// All returns the settings, in the order in which people read them.
func All() []Setting { return slices.Clone(table) }

// Keys returns the names of the settings, sorted.
func Keys() []string {
	var keys []string
	for i := range table {
		keys = append(keys, table[i].Key)
	}
	slices.Sort(keys)
	return keys
}

// Find returns the setting with a name, nil if there is none.
func Find(name string) *Setting {
	for i := range table {
		if table[i].Key == name || slices.Contains(table[i].Also, name) {
			return &table[i]
		}
	}
	return nil
}

// Set changes a setting of a function, by any of the setting's names.
func Set(to *config.Function, name, text string) error {
	if s := Find(name); s != nil {
		return s.Set(to, text)
	}
	if why, ok := elsewhere[name]; ok {
		return errors.New(why)
	}
	return fmt.Errorf("unknown setting; use one of %s", strings.Join(Keys(), ", "))
}

// Another reports whether a change makes it another function, which then has to be reset.
func Another(was, is *config.Function) bool {
	return slices.ContainsFunc(table, func(s Setting) bool { return s.Resets && s.Text(was) != s.Text(is) })
}

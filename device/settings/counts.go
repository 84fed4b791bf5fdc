package settings

import (
	"fmt"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon/credit"
)

// setCounts parses "req-pkt-tx=64,req-buf-tx=1024"; a number without a name sets all counters.
func setCounts(to *config.Credits, text string, least uint32) error {
	cost := to.Cost()
	for part := range strings.SplitSeq(text, ",") {
		name, value, named := strings.Cut(part, "=")
		if !named {
			value = name
		}
		var v uint32
		if err := number(&v, value); err != nil {
			return err
		}
		if v < least {
			return fmt.Errorf("%q: a limit of 0 would stop the function; write 1 or more, or disable it", part)
		}
		known := false
		for i := range cost {
			if !named || credit.Counter(i).String() == name {
				cost[i], known = v, true
			}
		}
		if !known {
			return fmt.Errorf("%q is not a counter; there are %s", name, counterList())
		}
	}
	to.SetCost(cost)
	return nil
}

func counterList() string {
	var names []string
	for i := range credit.Counter(credit.NumCounters) {
		names = append(names, i.String())
	}
	return strings.Join(names, ", ")
}

// countText writes credits in the form that setCounts parses.
func countText(c *config.Credits) string {
	var parts []string
	for i, v := range c.Cost() {
		if v != 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", credit.Counter(i), v))
		}
	}
	if len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, ",")
}

// Package docs holds those pages of the documentation that `vnic explain` reads, as people read
// them.
package docs

import "embed"

// Pages are the rules and tables of the device ABI, and what counters, statuses and faults mean.
//
//go:embed abi/index.md abi/reference.md troubleshooting.md metrics.md faults.md
var Pages embed.FS

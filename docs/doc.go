// Package docs holds what the program has of the documentation, as people read it: the pages that
// `vnic explain` reads, and the labs of `vnic lab`.
package docs

import "embed"

// Pages are the rules and tables of the device ABI, and what counters, statuses and faults mean.
//
//go:embed abi/index.md abi/reference.md troubleshooting.md metrics.md faults.md
var Pages embed.FS

// Labs are the labs that come with the program.
//
//go:embed labs/*.yaml
var Labs embed.FS

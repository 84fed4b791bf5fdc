package falcon

import "github.com/falcon-vnic/vnic/falcon/credit"

// Config sizes an engine. A size that is zero gets the default named.
type Config struct {
	Profile    Profile
	Credits    *credit.Node // charged by connections without a node of their own; nil = no credit limit
	CreditCell int          // bytes of a buffer credit, default credit.DefaultCell
	MaxConns   int          // default 65536
	RxCells    int          // cells for pushes that wait for their turn, default 4096
	CellBytes  int          // size of a cell and so the largest MTU, default 4608
	TxContexts int          // transactions of all initiators, default 65536; pull responses have their own
	RxContexts int          // requests received and not answered, default 65536; above it, in the red zone, only a connection's head of line is accepted
}

func (c *Config) setDefaults() {
	set := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	set(&c.CreditCell, credit.DefaultCell)
	set(&c.MaxConns, 65536)
	set(&c.RxCells, 4096)
	set(&c.CellBytes, 4608)
	set(&c.TxContexts, 65536)
	set(&c.RxContexts, 65536)
}

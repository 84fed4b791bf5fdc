package device

import (
	"log/slog"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/settings"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// recall sets functions as they were set in the NIC before. It is called before
// there are shards. What does not fit the configuration any more is left out.
func recall(from *settings.Memory, core *controller.Core, log *slog.Logger) {
	refused, err := from.Recall(func(id pfvf.ID, c *control.FunctionChange) error {
		return core.Functions.Recall(id, c)
	})
	if err != nil {
		log.Warn("what was set of functions is lost", "err", err)
	}
	for id, err := range refused {
		log.Warn("function not set again as it was", "function", id.String(), "err", err)
	}
}

package device

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
)

// Reload has the configuration read again, which leads to a call of Reconfigure. It implements
// control.Provider.
func (n *NIC) Reload(ctx context.Context) (control.Reloaded, error) {
	if n.deps.Reload == nil {
		return control.Reloaded{}, control.BadRequest{Err: errors.New("this NIC has no configuration file that it could reload")}
	}
	if err := n.deps.Reload(ctx); err != nil {
		return control.Reloaded{}, control.BadRequest{Err: fmt.Errorf("nothing has changed: %w", err)}
	}
	n.reload.Lock()
	defer n.reload.Unlock()
	return control.Reloaded{Changed: n.reload.changed}, nil
}

// Reconfigure makes the running NIC what another configuration says: all of it or, with an error,
// none. The identity in cm.identity is read again too. The configuration was checked.
func (n *NIC) Reconfigure(is *config.Config) error {
	n.reload.Lock()
	defer n.reload.Unlock()
	identity, err := n.links.newIdentity()
	if err != nil {
		return err
	}
	changed, err := n.Apply(controller.Compare(n.reload.was, is))
	if err != nil {
		return err
	}
	if is.Log.Level != n.reload.was.Log.Level && n.deps.LogLevel != nil {
		n.deps.LogLevel(is.Log.SlogLevel())
		changed = append(changed, "log.level")
	}
	if !reflect.DeepEqual(is.Metrics, n.reload.was.Metrics) || !reflect.DeepEqual(is.Web, n.reload.was.Web) {
		n.http.replace(httpServers(is, n.API, n.warnings), n.warnings)
		changed = append(changed, "metrics and web")
	}
	if identity != nil {
		n.links.use(identity)
		changed = append(changed, "the certificates in cm.identity")
	}
	n.reload.was, n.reload.changed = is, append([]string{}, changed...)
	n.log.Info("configuration reloaded", "changed", strings.Join(changed, "; "))
	return nil
}

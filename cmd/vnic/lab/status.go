package lab

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/falcon-vnic/vnic/device/control"
)

// Status of a lab, as `vnic lab status --json` prints it.
type (
	labStatus struct {
		Lab      string          `json:"lab"`
		Source   string          `json:"source"`          // what it was made from
		Error    string          `json:"error,omitempty"` // why it is not known what is there
		Etcd     *etcdStatus     `json:"etcd,omitempty"`
		Hosts    []hostStatus    `json:"hosts"`
		Machines []machineStatus `json:"machines"`
	}
	etcdStatus struct {
		State  string `json:"state"`
		PID    int    `json:"pid,omitempty"`
		URL    string `json:"url"`
		Folder string `json:"folder"` // of the fleet
		Netns  string `json:"netns"`
	}
	hostStatus struct {
		Name     string `json:"name"`
		ID       int    `json:"number"` // of its NIC (nic.host)
		State    string `json:"state"`  // up, or why not
		PID      int    `json:"pid,omitempty"`
		Peers    int    `json:"peers"`
		PeersUp  int    `json:"peers_up"`
		Link     string `json:"link"`
		Address  string `json:"address"` // of the NIC, on the link
		Control  string `json:"control"`
		Config   string `json:"config"`
		Netns    string `json:"netns"`
		Machines int    `json:"machines"`
	}
	machineStatus struct {
		Name     string `json:"name"`
		Host     string `json:"host"`
		Tenant   string `json:"tenant"`
		Address  string `json:"address"`
		Function string `json:"function"`
		State    string `json:"state"`
		Device   string `json:"device,omitempty"` // for vnic guest --device
		Enter    string `json:"enter"`            // how to get in
	}
)

// answerTime is how long a NIC that runs has to answer on a busy machine. One that does not run refuses
// at once.
const answerTime = 10 * time.Second

// statusOf asks the NICs of a lab.
func statusOf(ctx context.Context, name string) labStatus {
	p, err := open(name)
	if err != nil {
		return labStatus{Lab: name, Error: err.Error()}
	}
	s := labStatus{Lab: name, Source: p.state.Source}
	if p.etcd != nil {
		s.Etcd = p.etcd.status()
	}
	for _, h := range p.hosts {
		hs := hostStatus{
			Name: h.Name, ID: h.ID(), State: "down", Peers: len(h.Peers), Link: h.Link.Name, Address: h.Underlay(),
			Control: h.Control(), Config: h.Config(), Netns: h.Space(), Machines: len(h.Machines),
		}
		asking, cancel := context.WithTimeout(ctx, answerTime)
		client := control.NewClient(h.Control())
		n, err := client.NIC(asking)
		var functions []control.Function
		if err == nil {
			functions, err = client.Functions(asking)
		}
		cancel()
		if err == nil {
			hs.State, hs.PID = "up", n.PID
			for _, peer := range n.Peers {
				if peer.Up {
					hs.PeersUp++
				}
			}
		}
		s.Hosts = append(s.Hosts, hs)
		for _, m := range h.Machines {
			s.Machines = append(s.Machines, m.status(hs.State, functions))
		}
	}
	return s
}

func (m *machine) status(nic string, functions []control.Function) machineStatus {
	s := machineStatus{
		Name: m.Name, Host: m.host.Name, Tenant: m.Tenant, Address: m.Prefix(), Function: fmt.Sprintf("pf0.vf%d", m.VF), State: nic,
		Device: "unix://" + m.Socket(), Enter: "ip netns exec " + m.Space() + " bash",
	}
	switch {
	case m.Service != "":
		s.Device, s.Enter = "", "service: "+m.Service
	case m.Guest != nil:
		s.Device, s.Enter = "", "vnic lab shell "+m.Name
		if len(qemus(m.host, m.Name)) == 0 {
			s.State = "off"
		}
	}
	if f := m.functionAmong(functions); f != nil && f.Attached != "" {
		s.State = "attached"
	}
	return s
}

// orDash writes a process number; 0: there is none.
func orDash(pid int) string {
	if pid == 0 {
		return "-"
	}
	return strconv.Itoa(pid)
}

// functionAmong returns the machine's function among those of its NIC; nil: it is not there.
func (m *machine) functionAmong(functions []control.Function) *control.Function {
	id := fmt.Sprintf("h%d.pf0.vf%d", m.host.ID(), m.VF)
	for i := range functions {
		if functions[i].ID == id {
			return &functions[i]
		}
	}
	return nil
}

func (s labStatus) print(w io.Writer) {
	fmt.Fprintf(w, "lab %s\t%s\n", s.Lab, s.Source)
	if s.Error != "" {
		fmt.Fprintf(w, "  %s\n", s.Error)
		return
	}
	if e := s.Etcd; e != nil {
		fmt.Fprintf(w, "\nDIRECTORY\tSTATE\tADDRESS\tPID\netcd\t%s\t%s\t%s\n", e.State, e.URL, orDash(e.PID))
	}
	fmt.Fprintln(w, "\nHOST\tNIC\tNUMBER\tADDRESS\tLINK\tPEERS\tPID")
	for _, h := range s.Hosts {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%d of %d\t%s\n", h.Name, h.State, h.ID, h.Address, h.Link, h.PeersUp, h.Peers, orDash(h.PID))
	}
	fmt.Fprintln(w, "\nMACHINE\tSTATE\tHOST\tFUNCTION\tTENANT\tADDRESS\tHOW TO GET IN")
	for _, m := range s.Machines {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.Name, m.State, m.Host, m.Function, m.Tenant, m.Address, m.Enter)
	}
}

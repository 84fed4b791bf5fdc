package control

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// KnownHosts returns a function that reports whether a Host header names an HTTP server of this NIC:
// by an IP address, localhost, the machine's name, or one of names. A web page may make its own name
// resolve to this server (DNS rebinding). A browser then lets the page read the answers, and only
// the Host header shows that another site is meant. Pages of other names cannot read the answers,
// since we send no CORS headers. No page's name can be an address, and localhost is resolved locally
// (RFC 6761 §6.3).
func KnownHosts(names []string) func(host string) bool {
	if own, err := os.Hostname(); err == nil {
		names = append([]string{own}, names...)
	}
	return func(host string) bool {
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.TrimSuffix(host, ".")
		if host == "" || strings.EqualFold(host, "localhost") { // no Host: HTTP/1.0, which no browser uses
			return true
		}
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
			return true
		}
		return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(host, strings.TrimSuffix(name, ".")) })
	}
}

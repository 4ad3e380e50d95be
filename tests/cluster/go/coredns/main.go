// Command coredns is CoreDNS with only the plugins that the cluster's Corefile names: a tenth of the code to compile.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func init() {
	// The order in which a query passes the plugins; CoreDNS keeps its own list in core/dnsserver/zdirectives.go.
	dnsserver.Directives = []string{"reload", "health", "ready", "errors", "cache", "kubernetes"}
}

func main() {
	coremain.Run()
}

// Command components is every program of the local cluster in one binary, linked once: the name it is called by
// (a hard link or symbolic link) chooses the program.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { serve(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { serve(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() { serve(scheduler.NewSchedulerCommand()) },
	"kube-proxy":              func() { serve(proxy.NewProxyCommand()) },
	"kubelet":                 func() { serve(kubelet.NewKubeletCommand(context.Background())) },
	"kubectl":                 runKubectl,
}

func main() {
	name := filepath.Base(os.Args[0])
	run, known := programs[name]
	if !known {
		names := make([]string, 0, len(programs))
		for program := range programs {
			names = append(names, program)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "%s: call this binary by one of these names: %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	run()
}

func serve(command *cobra.Command) {
	os.Exit(cli.Run(command))
}

// runKubectl sets the verbosity before the command exists, because building it already logs (as kubectl's own main does).
func runKubectl() {
	if _, err := logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}

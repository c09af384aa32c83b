package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
)

type controllerOptions struct {
	endpointSlice, nodeLifecycle bool
	monitorPeriod, gracePeriod   time.Duration
}

// startControllers runs those of kube-controller-manager that the daemon leans on. They end with the process.
func startControllers(ctx context.Context, config *rest.Config, o controllerOptions) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	f := informers.NewSharedInformerFactory(client, 0)
	core := f.Core().V1()
	var run []func()
	if o.endpointSlice {
		c := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(), f.Discovery().V1().EndpointSlices(),
			100, client, 0)
		run = append(run, func() { c.Run(ctx, 5) })
	}
	if o.nodeLifecycle {
		c, err := nodelifecycle.NewNodeLifecycleController(ctx, f.Coordination().V1().Leases(), core.Pods(), core.Nodes(),
			f.Apps().V1().DaemonSets(), client, o.monitorPeriod, o.gracePeriod, o.gracePeriod, 0.1, 0.01, 50, 0.55)
		if err != nil {
			return fmt.Errorf("node lifecycle: %w", err)
		}
		run = append(run, func() { c.Run(ctx) })
	}
	f.Start(ctx.Done())
	for _, r := range run {
		go r()
	}
	return nil
}

// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package worker_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/pkg/worker"
)

// flash writes a new firmware to the machine of a node, which takes the given time.
func flash(ctx context.Context, t *worker.Task, takes time.Duration) error {
	version := t.Object().Spec.Parameters["version"]
	progress := worker.Progress{Message: "Writing firmware " + version, ExpectedFinish: time.Now().Add(takes)}
	if err := t.Report(ctx, progress); err != nil {
		return err
	}
	select { // where your program would write the firmware of t.NodeName
	case <-time.After(takes):
		return nil
	case <-ctx.Done(): // the node is taken back: stop
		return context.Cause(ctx)
	}
}

// This program is the worker flash.example.com.
func Example() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file; if empty, the service account of this pod is used")
	takes := flag.Duration("takes", time.Minute, "how long it takes to write the firmware")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	exitOn(err)
	w, err := worker.New(worker.Config{
		Class: "flash.example.com", Holder: "flash", Client: versioned.NewForConfigOrDie(config),
		Handler: func(ctx context.Context, t *worker.Task) error { return flash(ctx, t, *takes) },
	})
	exitOn(err)
	exitOn(w.Run(ctx))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command drain drains nodes of the cluster of $KUBECONFIG, and puts them back into service when
// your work is done, for programs that have used k8s.io/kubectl/pkg/drain. It needs the rights of
// ../rbac-maintenance-operator.yaml.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"haulout.dev/haulout/pkg/drainer"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
)

// maintain drains nodes, does the work, and puts the nodes back into service. After an error it
// leaves them as they are: the drain continues, and a user can end it with Complete or Cancel.
func maintain(ctx context.Context, client versioned.Interface, nodes []string, work func(context.Context) error) error {
	d := &drainer.Drainer{Client: client}
	nm, err := d.Drain(ctx, drainer.ForNodes(nodes[0], nodes[1:]...))
	if err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	_, err = d.Wait(timed, nm, drainer.Drained)
	if errors.Is(err, drainer.ErrPodsKept) { // DaemonSet pods that tolerate the drain: expected
		err = nil
	}
	if err != nil { // errors.Is: ErrTimeout, ErrBlocked, ErrEnded, ErrPaused
		return err
	}
	if err := work(ctx); err != nil {
		return err
	}
	if _, err := d.Complete(ctx, nm); err != nil {
		return err
	}
	_, err = d.Wait(ctx, nm, drainer.Complete)
	return err
}

func main() {
	if len(os.Args) < 2 {
		exitOn(errors.New("no nodes given"))
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	exitOn(err)
	client, err := versioned.NewForConfig(config)
	exitOn(err)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = maintain(ctx, client, os.Args[1:], func(context.Context) error { return nil }) // your work
	stop()
	exitOn(err)
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Command webhook runs cert-manager's webhook with its flags. No module proxy has cert-manager's own main package (see
// controller). That package does no more than this command.
package main

import (
	"context"
	"log"
	"os"

	"github.com/spf13/pflag"

	"github.com/cert-manager/cert-manager/internal/webhook"
	"github.com/cert-manager/cert-manager/pkg/logs"
	"github.com/cert-manager/cert-manager/pkg/webhook/options"
)

func main() {
	config, err := options.NewWebhookConfiguration()
	if err != nil {
		log.Fatal(err)
	}
	flags := pflag.NewFlagSet("webhook", pflag.ExitOnError)
	options.AddConfigFlags(flags, config)
	_ = flags.Parse(os.Args[1:]) // exits on an error
	logs.InitLogs()
	ctx := logs.NewContext(context.Background(), logs.Log, "webhook")
	server, err := webhook.NewCertManagerWebhookServer(logs.Log, *config)
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

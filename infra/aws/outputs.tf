output "server" {
  description = "What a kubeconfig has as its server"
  value       = "https://${var.domain}"
}

output "function_url" {
  description = "The function without CloudFront: everything but watches"
  value       = aws_lambda_function_url.api.function_url
}

output "bucket" {
  description = "The cell's bucket and folder, for LOGPLANE_BUCKET"
  value       = local.environment.LOGPLANE_BUCKET
}

output "doorbell" {
  description = "Queue that makes the lifecycle work at once"
  value       = aws_sqs_queue.doorbell.url
}
